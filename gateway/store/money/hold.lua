-- hold(request_id, amount, floor, lease, fingerprint, max holds, keep, skew)
-- The second value that is returned is true where nothing is held: as a step, it ends the script.
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

local account, record = wallet(request_id)
if not account then
  return { request_id, "NO_ACCOUNT", 0, 0, 0 }, true
end
local status, credit_line = unpack(redis.call("HMGET", account_key, "status", "credit_line"))
credit_line = integer(credit_line or "0", 0, MOST, "the credit line")
local now = clock()

local over = {}
if account.holds > 0 and account.due <= now then
  over = expire(account, now, 16)
  if #over > 0 then
    save(account)
    record = redis.call("HGET", wallet_key, request_id)
  end
end

local function reply(word)
  return { request_id, word, account.balance, account.held, credit_line, unpack(over) }, word ~= "HELD"
end

local hold = hold_in(record)
if hold and hold.expiry <= now then -- expired, but not among the 16 ended above
  finish(account, request_id, hold, "expire", hold.floor)
  save(account)
  over[#over + 1], over[#over + 2] = request_id, hold.floor
  return reply("DONE")
end
if hold then
  return reply(hold.fingerprint == fingerprint and "HELD" or "CONFLICT")
end
if end_in(record) then
  return reply("DONE")
end
if math.abs(arrived - now) > skew then
  return reply("SKEW")
end
if status ~= "active" then
  return reply("INACTIVE")
end
if account.holds >= max_holds then
  return reply("BUSY")
end
if account.balance - account.held + credit_line < amount then
  return reply("FUNDS")
end
if account.held + amount > MOST then
  refuse("the new sum of holds is beyond its range")
end
local expiry = now + lease
if account.holds == 0 or expiry < account.due then
  account.due = expiry
end
account.held, account.holds = account.held + amount, account.holds + 1
change(account, request_id, string.format("1 %d %d %d %s", amount, expiry, floor, fingerprint))
redis.call("ZADD", leases, expiry, request_id)
save(account)
return reply("HELD")
