"""The judgement: (policy, state, observation) -> (state, limits and the reasons for them).

Pure numpy: no clock, no I/O, no logging. The same code runs in production, in simulations and in
explanations. `step` is the door; `curve`, `utilisation`, `guard`, `rate` give each pool its rate, `plan`,
`demand`, `fill`, `share` split it over the keys, `burst` turns rates into what a token bucket can hold,
`explain` puts it in words.
"""
