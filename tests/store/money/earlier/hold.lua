-- hold(rid, amount, floor, lease, fingerprint, most holds, keep, skew)
local rid, fingerprint = ARGV[1], ARGV[5]
local born = moment(rid)
local amount = integer(ARGV[2], 0, MOST, "the amount")
local floor = integer(ARGV[3], 0, amount, "the floor")
local keep = integer(ARGV[7], 1, MOST, "keep")
local skew = integer(ARGV[8], 1, MOST, "skew")
local lease = integer(ARGV[4], 1, keep, "the lease")
local most_holds = integer(ARGV[6], 1, MOST, "the most holds")
if not fingerprint:match("^%w+$") or #fingerprint > 64 then
  refuse("the fingerprint is not 1 to 64 letters and digits")
end

local function reply(word)
  local purse = wallet()
  return { rid, word, purse.balance, purse.held, purse.credit_line }
end

if not wallet() then
  return { rid, "NO_ACCOUNT", 0, 0, 0 }
end
local now = clock()
expire(now, 16)
trim(now, keep, skew)

local hold = hold_of(rid)
if hold and hold.expiry <= now then -- overdue, but beyond the bounded number above
  finish(rid, hold, "expire", hold.floor, now)
  hold = nil
end
if hold then
  return reply(hold.fingerprint == fingerprint and "HELD" or "CONFLICT")
end
if end_of(rid) then
  return reply("DONE")
end
if math.abs(born - now) > skew then
  return reply("SKEW")
end
local purse = wallet()
if purse.status ~= "active" then
  return reply("INACTIVE")
end
if purse.holds >= most_holds then
  return reply("BUSY")
end
if purse.balance - purse.held + purse.credit_line < amount then
  return reply("FUNDS")
end
integer(digits(purse.held + amount), 0, MOST, "the new sum of holds")
redis.call("HINCRBY", account, "held", digits(amount))
redis.call("HINCRBY", account, "holds", "1")
local terms = { "1", digits(amount), digits(now + lease), digits(floor), fingerprint }
redis.call("HSET", holds, rid, table.concat(terms, " "))
redis.call("ZADD", leases, digits(now + lease), rid)
return reply("HELD")
