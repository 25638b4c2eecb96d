-- measure counts the lanes of a shard and those that nobody takes although they are due, shows some of these, and says how
-- many events of given lanes could be pushed now.
--
-- KEYS  1 epoch:{tag}  2 due:{tag}; then per lane: ratelimit lane retry, each :{tag}:<key>
-- ARGV  1 epoch id  2 now in us (0: Redis' clock)  3 the rules (see base.lua), then
--       grace us: how long a lane is due before it counts; most lanes to show; where those begin, in millionths of the way
--       from the longest due to the last; then per lane: its rule, its class
-- reply {1} the epoch is another, nothing was written; else {0, now, 0, lanes, lanes that nobody takes, us for which the
--       first is due (0: none is), {keys of some}, {per lane given: its events that could be pushed now, or the name of
--       its class if that is another}}
-- Invariant: nothing is written. What it costs doesn't grow with the number of lanes or of events.
--
-- cat base.lua common.lua waiting.lua measure.lua > /tmp/s.lua; redis-cli --eval /tmp/s.lua 'epoch:{s03}' 'due:{s03}' , ID 0 1000000 60000000 1 0 1 '' 0 1 100000 20 -1 350000 16 0
local ok, since = epoch(KEYS[1], ARGV[1])
if not ok then return {1} end
local now = clock(tonumber(ARGV[2]))
local all, a = rules()
local L -- of the lane
local before, most, start = d(now - tonumber(ARGV[a])), tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2])

-- able answers how many events of a lane could be pushed now, each at the price of the first.
local function able(s, lane, retry)
  if not s or L.mode == 1 or s.til > now or s.closedUntil > now then return 0 end
  local waiting, back = size(lane), redis.pcall('ZCOUNT', retry, '-inf', d(now))
  if not waiting or not typed(back) then return 0 end
  local n = waiting + back
  if s.fails > 0 then n = min(n, 1) end
  if n == 0 or L.mode == 2 then return n end
  refill(s, L, now, since)
  return fits(s, L, now, n, cost(redis.call('ZRANGE', lane, '0', '0')[1] or ''))
end

local untaken = redis.call('ZCOUNT', KEYS[2], '-inf', before)
local first = redis.call('ZRANGE', KEYS[2], '0', '0', 'WITHSCORES')
local reply = {0, now, 0, redis.call('ZCARD', KEYS[2]), untaken, first[1] and max(0, now - tonumber(first[2])) or 0, {}, {}}
if untaken > 0 and most > 0 then
  local from = floor(max(0, untaken - most) * start / 1000000)
  reply[7] = redis.call('ZRANGE', KEYS[2], d(from), d(min(untaken, from + most) - 1))
end
for i = 1, (#KEYS - 2) / 3 do
  L = all[ARGV[a + 1 + 2 * i]]
  local s = load(L, KEYS[3 * i])
  local known = not s or s.class == ARGV[a + 2 + 2 * i]
  reply[8][i] = known and able(s, KEYS[3 * i + 1], KEYS[3 * i + 2]) or s.class
end
return reply
