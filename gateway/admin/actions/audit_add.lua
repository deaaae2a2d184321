-- Adds a line to a part of the audit log and removes its oldest lines, so that it has neither too many nor too many bytes.
-- KEYS[1]: the stream. KEYS[2]: its bytes, as they are counted here. ARGV: most lines, most bytes, the first number of a line
-- within its millisecond, the id of the line that it replaces or nothing, then the fields.

local ABOUT_A_LINE = 64 -- bytes for its id and for the list that it is in

local function size_of(fields, first)
  local size = ABOUT_A_LINE
  for index = first, #fields do
    size = size + #fields[index]
  end
  return size
end

-- The store would number each stream from 0 on, so that lines of two streams had the same id.
local function next_id(first)
  local now = redis.call('TIME')
  local at, number = now[1] * 1000 + math.floor(now[2] / 1000), first
  local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
  if last then
    local last_at, last_number = string.match(last[1], '(%d+)-(%d+)')
    if tonumber(last_at) >= at then
      at, number = tonumber(last_at), last_number + 1
    end
  end
  return string.format('%.0f-%.0f', at, number)
end

local id = redis.call('XADD', KEYS[1], next_id(tonumber(ARGV[3])), unpack(ARGV, 5))
local bytes = redis.call('INCRBY', KEYS[2], size_of(ARGV, 5))
local replaced = ARGV[4] ~= '' and redis.call('XRANGE', KEYS[1], ARGV[4], ARGV[4])[1]
if replaced then
  redis.call('XDEL', KEYS[1], ARGV[4])
  bytes = redis.call('DECRBY', KEYS[2], size_of(replaced[2], 1))
end
local lines = redis.call('XLEN', KEYS[1])
while lines > 1 and (bytes > tonumber(ARGV[2]) or lines > tonumber(ARGV[1])) do
  local oldest = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
  redis.call('XDEL', KEYS[1], oldest[1])
  bytes = redis.call('DECRBY', KEYS[2], size_of(oldest[2], 1))
  lines = lines - 1
end
return id
