"""placeholder"""
def model_card(target, reports):
    return ""
