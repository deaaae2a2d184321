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
integer(digits(purse.balance - cost), -MOST, MOST, "the new balance")
local now = clock()
trim(now, keep, skew)

local hold = hold_of(rid)
if hold then
  finish(rid, hold, kind, cost, now)
  return { rid, "OK", cost }
end
local past = end_of(rid)
if past and past.kind ~= "expire" then
  return { rid, "DONE", past.charged }
end
if past then -- in all it is charged its cost: expiry took a floor, or nothing
  redis.call("HSET", ended, rid, "1 late " .. digits(cost))
  move("late", rid, past.charged - cost)
  return { rid, "LATE", cost }
end
if born < now - keep or born > now + skew then
  redis.call("HSETNX", stale, rid, digits(cost))
  return { rid, "STALE", 0 }
end
finish(rid, nil, "orphan", cost, now)
return { rid, "ORPHAN", cost }
