-- settle(rid, kind: settle | release, cost, keep, skew)
local rid, kind = ARGV[1], ARGV[2]
local born = moment(rid)
local cost = integer(ARGV[3], 0, kind == "settle" and MOST or 0, "the cost")
local keep = integer(ARGV[4], 1, MOST, "keep")
local skew = integer(ARGV[5], 1, MOST, "skew")
if kind ~= "settle" and kind ~= "release" then
  refuse("the kind is neither settle nor release")
end

local purse = wallet()
if not purse then
  return { rid, "NO_ACCOUNT", 0 }
end
if purse.balance - cost < -MOST then
  refuse("the new balance is beyond its range")
end
local now = clock()
if rid:find("[08]$") then -- the last digit is random: one settlement in eight, for four times as many ends
  trim(now, keep, skew)
end

local hold = hold_of(rid)
if hold then
  finish(purse, rid, hold, kind, cost, now)
  save(purse)
  return { rid, "OK", cost }
end
local past = end_of(rid)
if past and past.kind ~= "expire" then
  return { rid, "DONE", past.charged }
end
if past then -- in all it is charged its cost: expiry took a floor, or nothing
  redis.call("HSET", ended, rid, "1 late " .. digits(cost))
  move(purse, "late", rid, past.charged - cost)
  save(purse)
  return { rid, "LATE", cost }
end
if born < now - keep or born > now + skew then
  redis.call("HSETNX", stale, rid, digits(cost))
  return { rid, "STALE", 0 }
end
finish(purse, rid, nil, "orphan", cost, now)
save(purse)
return { rid, "ORPHAN", cost }
