-- snapshot(account): all data that must agree at one moment. Of the ledger, only the id of its last line. Writes nothing.
local last = redis.call("XREVRANGE", ledger, "+", "-", "COUNT", 1)
local resolved = {}
for _, request_id in ipairs(redis.call("HKEYS", holds)) do
  if redis.call("HEXISTS", ended, request_id) == 1 then
    resolved[#resolved + 1] = request_id
  end
end
return {
  ARGV[1],
  redis.call("HMGET", account_key, "balance", "held", "holds", "archived"),
  redis.call("HGETALL", holds),
  redis.call("ZRANGE", leases, 0, -1, "WITHSCORES"),
  redis.call("HGETALL", credits),
  resolved,
  last[1] and last[1][1] or "0-0",
  digits(clock()),
}
