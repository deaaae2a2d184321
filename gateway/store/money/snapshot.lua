-- snapshot(account, fields of budgets): all data that must agree at one moment. Of the ledger, only the id of its last line.
-- Writes nothing.
local last = redis.call("XREVRANGE", ledger, "+", "-", "COUNT", 1)
local ends = redis.call("ZRANGE", leases, 0, -1, "WITHSCORES")
local held, resolved = {}, {}
for at = 1, #ends, 2 do
  local record = redis.call("HGET", wallet_key, ends[at])
  if end_in(record) then
    resolved[#resolved + 1] = ends[at]
  elseif record then
    held[#held + 1], held[#held + 2] = ends[at], record
  end
end
return {
  ARGV[1],
  redis.call("HMGET", wallet_key, "numbers", "archived"),
  held,
  ends,
  redis.call("HGETALL", credits),
  resolved,
  last[1] and last[1][1] or "0-0",
  digits(clock()),
  #ARGV > 1 and redis.call("HMGET", wallet_key, unpack(ARGV, 2)) or {},
}
