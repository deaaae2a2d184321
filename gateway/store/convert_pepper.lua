-- Makes the fingerprint of the pepper a field of a hash, which a version of layout 1 cannot read: it does not start.
-- KEYS the fingerprint   ARGV the number of the layout
if redis.call('TYPE', KEYS[1]).ok == 'string' then
  local fingerprint = redis.call('GET', KEYS[1])
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], 'fingerprint', fingerprint)
end
redis.call('HSET', KEYS[1], 'layout', ARGV[1])
