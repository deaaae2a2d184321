-- Replaces the claim of an external id if it is unchanged since it was read.
-- KEYS gw:external:ID   ARGV: the claim as read ('' for none), the new one ('' deletes)
-- Returns 1, or 0 where it is not what was read.
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
if ARGV[2] == '' then redis.call('DEL', KEYS[1]) else redis.call('SET', KEYS[1], ARGV[2]) end
return 1
