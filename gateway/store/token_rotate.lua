-- Replaces a token by another one: adds the new record and shortens the old one, both or neither.
-- KEYS gw:{account}:tokens
-- ARGV: the old token's id, its record as read, its new record, the new token's id, its record
-- Returns 1, or 0 where the old record is not what was read, or the new id is in use.
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] or redis.call('HEXISTS', KEYS[1], ARGV[4]) == 1 then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3], ARGV[4], ARGV[5])
return 1
