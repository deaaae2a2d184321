"""Randomized life: one gateway under callers, upstreams, edits, kills and faults of many kinds, judged by its contract.

`plan` decides from the seed what happens when. `site` runs the gateway; `upstreams` and `network` are behind it; `callers`,
`hostile` and `openai_client` are before it; `disturbances` edits, kills and fills. `oracle`, `charges` and `leftovers` judge
what was seen; `known` names deviations that are tolerated for now; `report` prints.
"""
