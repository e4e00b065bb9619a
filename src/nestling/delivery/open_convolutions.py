def TRANSLATIONS(): return {}
def with_branches(*a): pass
