-- settle(request_id, kind: settle | release, cost, keep, skew)
local request_id, kind = ARGV[1], ARGV[2]
local arrived = arrival_ms(request_id)
local cost = integer(ARGV[3], 0, kind == "settle" and MOST or 0, "the cost")
local keep = integer(ARGV[4], 1, MOST, "keep")
local skew = integer(ARGV[5], 1, MOST, "skew")
if kind ~= "settle" and kind ~= "release" then
  refuse("the kind is neither settle nor release")
end

local account = wallet()
if not account then
  return { request_id, "NO_ACCOUNT", 0 }
end
if account.balance - cost < -MOST then
  refuse("the new balance is beyond its range")
end
local now = clock()
if request_id:find("[08]$") then -- the last digit is random: one settlement in eight trims up to 32 ends
  trim(now, keep, skew)
end

local hold = hold_of(request_id)
if hold then
  finish(account, request_id, hold, kind, cost, now)
  save(account)
  return { request_id, "OK", cost }
end
local past = end_of(request_id)
if past and past.kind ~= "expire" then
  return { request_id, "DONE", past.charged }
end
if past then -- the total charge becomes the cost: expiry charged the floor, or nothing
  redis.call("HSET", ended, request_id, "1 late " .. digits(cost))
  move(account, "late", request_id, past.charged - cost)
  save(account)
  return { request_id, "LATE", cost }
end
if arrived < now - keep or arrived > now + skew then
  redis.call("HSETNX", stale, request_id, digits(cost))
  return { request_id, "STALE", 0 }
end
finish(account, request_id, nil, "orphan", cost, now)
save(account)
return { request_id, "ORPHAN", cost }
