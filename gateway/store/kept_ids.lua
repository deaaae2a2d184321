-- Remembers ids of what upstreams keep for an account, and forgets the oldest.
-- KEYS gw:{ACCOUNT}:kept, a hash of ids; gw:{ACCOUNT}:kept:order, the ids by the time of their last writing
-- ARGV: the most ids, for how many ms, then each id with its value
local time = redis.call("TIME")
local now, kept = time[1] * 1000 + math.floor(time[2] / 1000), tonumber(ARGV[2])
for at = 3, #ARGV, 2 do
  redis.call("HSET", KEYS[1], ARGV[at], ARGV[at + 1])
  redis.call("ZADD", KEYS[2], now, ARGV[at])
end
local old = redis.call("ZRANGEBYSCORE", KEYS[2], "-inf", now - kept, "LIMIT", 0, 1000)
local over = redis.call("ZCARD", KEYS[2]) - ARGV[1]
if over > #old then
  old = redis.call("ZRANGE", KEYS[2], 0, math.min(over, 1000) - 1)
end
if #old > 0 then
  redis.call("HDEL", KEYS[1], unpack(old))
  redis.call("ZREM", KEYS[2], unpack(old))
end
redis.call("PEXPIRE", KEYS[1], kept)
redis.call("PEXPIRE", KEYS[2], kept)
return #old
