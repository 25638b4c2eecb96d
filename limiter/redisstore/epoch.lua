-- epoch opens a shard for a worker, leases the work on its index, and feeds and ends the rebuild of it.
--
-- KEYS  1 epoch:{tag}  2 due:{tag}; then for "index" per event: lane ratelimit; for "drop" per lane: ratelimit lane
--       busy retry collapse, each :{tag}:<key>
-- ARGV  1 what  2 now in us (0: Redis' clock)  3 creation time of the lane stream, then for
--       "open":   4 fresh (1: the caller has made the very first entry of the lane stream: buckets start full)
--       "build":  4 token of the lease (random)  5 worker  6 for how long in us nobody else may take it
--       "drop":   4 token, then per lane: key
--       "index":  4 token  5 tiers count (1, 0), then per event: key, member, order, tier
--       "finish": 4 token  5 new id (random)  6 fresh  7 for how long in us what was promised may be kept
--       "verify": 4 to 6 as of build  7 epoch id
--       "keep":   4 token  5 for how long in us from now on
--       "leave":  4 token
--       "begin":  4 new id (random)  5 fresh, for a limiter without lanes, whose creation time of the lane stream is 0
-- reply open: {1, id, calls, creation time}, {0} (the state is missing or belongs to another lane stream: build) or {2, format} (another
--       version of sluice wrote it: nothing may be touched)
--       build: {1, 1: the state is that of another lane stream, whose lanes are to be dropped first} begun, {0} another
--       worker builds; drop: {1, events dropped, keys of further lanes to drop...}; index, finish: {1, creation time}; all three {0}: the build is
--       no longer this one: stop
--       verify: {1, sequence up to which the shard is verified, as text} begun, {0} another worker verifies, {2} the epoch is another
--       keep, leave: {1} or {0}: the lease is another's, or was forgotten
--       begin: {1, id, calls}, {0} (the state belongs to a pipeline) or {2, format}
-- A worker builds or verifies under a lease, which it keeps by heartbeats. A build needs no leave of who verifies: that is void.
-- Invariant: the id appears only after every body of the lane stream was indexed under one build, but those of a lane that is no
--       sorted set: whoever is to lease it finds out. Of another lane stream's
--       state the buckets are kept, and so is since: nothing of them is lost.
--
-- cat base.lua common.lua waiting.lua epoch.lua > /tmp/s.lua; redis-cli --eval /tmp/s.lua 'epoch:{s03}' 'due:{s03}' , open 0 1764460800000000000 0
local what, now, lanes = ARGV[1], clock(tonumber(ARGV[2])), ARGV[3]
local FORMAT = '1'
local e = redis.call('HMGET', KEYS[1], 'id', 'lanes', 'n', 'building', 'holder', 'format', 'since', 'adopted',
  'token', 'until', 'verified')

-- lease gives the work on the shard to a worker, if no other has it. An end further off than it is ever set is by a clock that was
-- wrong.
local function lease(token, worker, span)
  local left = (tonumber(e[10] or '') or 0) - now
  if e[9] and e[5] ~= worker and left > 0 and left <= span then return false end
  redis.call('HSET', KEYS[1], 'token', token, 'holder', worker, 'until', d(now + span))
  return true
end

if what == 'open' then
  if e[1] and e[6] and e[6] ~= FORMAT then return {2, e[6]} end
  if not e[1] or e[2] ~= lanes then return {0} end
  if ARGV[4] == '1' and e[8] ~= lanes then redis.call('HSET', KEYS[1], 'since', '0') end
  return {1, e[1], tonumber(e[3] or '0'), lanes}
elseif what == 'begin' then
  if e[1] and e[6] and e[6] ~= FORMAT then return {2, e[6]} end
  if e[2] and e[2] ~= lanes then return {0} end
  if not e[1] then
    e[1], e[3] = ARGV[4], '1'
    local since = ARGV[5] == '1' and '0' or d(now + HORIZON) -- so long promises of before the loss are kept
    redis.call('HSET', KEYS[1], 'lanes', lanes, 'format', FORMAT, 'id', e[1], 'since', since, 'n', e[3])
  end
  return {1, e[1], tonumber(e[3] or '0')}
elseif what == 'build' then
  if e[1] and e[2] == lanes then return {0} end
  if not e[4] then e[9] = nil end
  if not lease(ARGV[4], ARGV[5], tonumber(ARGV[6])) then return {0} end
  redis.call('HDEL', KEYS[1], 'id', 'verified')
  redis.call('HSET', KEYS[1], 'lanes', lanes, 'building', ARGV[4])
  if e[2] and e[2] ~= lanes then
    e[8] = lanes
    redis.call('HSET', KEYS[1], 'adopted', lanes)
  end
  return {1, e[8] == lanes and 1 or 0}
elseif what == 'verify' then
  if e[1] ~= ARGV[7] then return {2} end
  return lease(ARGV[4], ARGV[5], tonumber(ARGV[6])) and {1, e[11] or '0'} or {0}
elseif what == 'keep' then
  if e[9] ~= ARGV[4] then return {0} end
  redis.call('HSET', KEYS[1], 'until', d(now + tonumber(ARGV[5])))
  return {1}
elseif what == 'leave' then
  if e[9] ~= ARGV[4] then return {0} end
  redis.call('HDEL', KEYS[1], 'building', 'token', 'holder', 'until')
  return {1}
end

if e[4] ~= ARGV[4] or e[2] ~= lanes then return {0} end
if what == 'drop' then
  local events = 0
  for i = 3, #KEYS, 5 do
    events = events + (backlog(KEYS[i + 1], KEYS[i + 3]) or 0) + (size(KEYS[i + 2]) or 0)
    redis.pcall('HDEL', KEYS[i], 'extra')
    redis.call('UNLINK', KEYS[i + 1], KEYS[i + 2], KEYS[i + 3], KEYS[i + 4])
  end
  if #KEYS > 2 then redis.call('ZREM', KEYS[2], unpack(ARGV, 5)) end
  return {1, events, unpack(redis.call('ZRANGE', KEYS[2], '0', '255'))}
elseif what == 'index' then
  for i = 0, (#KEYS - 2) / 2 - 1 do
    local a = 6 + 4 * i
    if size(KEYS[2 * i + 3]) then insert(KEYS[2 * i + 3], ARGV[a + 2], ARGV[a + 1]) end
    tallyUnread(KEYS[2 * i + 4], now)
    redis.call('ZADD', KEYS[2], 'NX', d(now), ARGV[a])
    if ARGV[5] == '1' then remember(KEYS[2 * i + 4], ARGV[a + 3], now) end -- the newest event's is the last
  end
elseif what == 'finish' then
  -- Slots promised before the loss are kept for up to a second: buckets begin to fill when the last of them has passed.
  redis.call('HDEL', KEYS[1], 'building', 'token', 'holder', 'until')
  local since = ARGV[6] == '1' and '0' or d(now + tonumber(ARGV[7]))
  if e[7] and e[8] == lanes then since = e[7] end
  redis.call('HSET', KEYS[1], 'format', FORMAT, 'id', ARGV[5], 'since', since, 'n', '1')
end
return {1, lanes}
