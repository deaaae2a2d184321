-- Checks that a token and its account still are what a gateway has read before.
-- KEYS  the hash of the account's tokens, the account
-- ARGV  the token's short id, its record, then the account's status, group, models, limits and budgets ('' for none)
-- Returns 1, or the record and all fields of the account, and true: as a step, it ends the script.
local record = redis.call('HGET', KEYS[1], ARGV[1])
local profile = redis.call('HMGET', KEYS[2], 'status', 'group', 'models', 'limits', 'budgets')
if record == ARGV[2] and profile[1] == ARGV[3] and profile[2] == ARGV[4] and profile[3] == ARGV[5] and profile[4] == ARGV[6]
    and (profile[5] or '') == ARGV[7] then
  return 1
end
return { record, redis.call('HGETALL', KEYS[2]) }, true
