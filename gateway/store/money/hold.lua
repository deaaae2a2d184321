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

local purse = wallet()
if not purse then
  return { rid, "NO_ACCOUNT", 0, 0, 0 }
end
local now = clock()
local over = expire(purse, now, 16)

local function reply(word)
  return { rid, word, purse.balance, purse.held, purse.credit_line, unpack(over) }
end

local hold = hold_of(rid)
if hold and hold.expiry <= now then -- overdue, but beyond the bounded number above
  finish(purse, rid, hold, "expire", hold.floor, now)
  save(purse)
  over[#over + 1], over[#over + 2] = rid, hold.floor
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
if purse.status ~= "active" then
  return reply("INACTIVE")
end
if purse.holds >= most_holds then
  return reply("BUSY")
end
if purse.balance - purse.held + purse.credit_line < amount then
  return reply("FUNDS")
end
if purse.held + amount > MOST then
  refuse("the new sum of holds is beyond its range")
end
purse.held, purse.holds = purse.held + amount, purse.holds + 1
local terms = string.format("1 %.0f %.0f %.0f %s", amount, now + lease, floor, fingerprint)
redis.call("HSET", holds, rid, terms)
redis.call("ZADD", leases, now + lease, rid)
save(purse)
return reply("HELD")
