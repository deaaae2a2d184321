-- hold(request_id, amount, floor, lease, fingerprint, max holds, keep, skew)
local request_id, fingerprint = ARGV[1], ARGV[5]
local arrived = arrival_ms(request_id)
local amount = integer(ARGV[2], 0, MOST, "the amount")
local floor = integer(ARGV[3], 0, amount, "the floor")
local keep = integer(ARGV[7], 1, MOST, "keep")
local skew = integer(ARGV[8], 1, MOST, "skew")
local lease = integer(ARGV[4], 1, keep, "the lease")
local max_holds = integer(ARGV[6], 1, MOST, "the most holds")
if not fingerprint:match("^%w+$") or #fingerprint > 64 then
  refuse("the fingerprint is not 1 to 64 letters and digits")
end

local account = wallet()
if not account then
  return { request_id, "NO_ACCOUNT", 0, 0, 0 }
end
local now = clock()
local over = expire(account, now, 16)

local function reply(word)
  return { request_id, word, account.balance, account.held, account.credit_line, unpack(over) }
end

local hold = hold_of(request_id)
if hold and hold.expiry <= now then -- expired, but not among the 16 ended above
  finish(account, request_id, hold, "expire", hold.floor, now)
  save(account)
  over[#over + 1], over[#over + 2] = request_id, hold.floor
  hold = nil
end
if hold then
  return reply(hold.fingerprint == fingerprint and "HELD" or "CONFLICT")
end
if end_of(request_id) then
  return reply("DONE")
end
if math.abs(arrived - now) > skew then
  return reply("SKEW")
end
if account.status ~= "active" then
  return reply("INACTIVE")
end
if account.holds >= max_holds then
  return reply("BUSY")
end
if account.balance - account.held + account.credit_line < amount then
  return reply("FUNDS")
end
if account.held + amount > MOST then
  refuse("the new sum of holds is beyond its range")
end
account.held, account.holds = account.held + amount, account.holds + 1
local terms = string.format("1 %.0f %.0f %.0f %s", amount, now + lease, floor, fingerprint)
redis.call("HSET", holds, request_id, terms)
redis.call("ZADD", leases, now + lease, request_id)
save(account)
return reply("HELD")
