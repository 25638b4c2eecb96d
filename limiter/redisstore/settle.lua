-- settle says what became of leased events, and ends the lease if asked.
--
-- KEYS  1 epoch:{tag}  2 due:{tag}, then those of further shards, which only a single Redis may have in one call; then per
--       entry: ratelimit lane busy retry collapse, each :{tag}:<key>
-- ARGV  1 epoch id  2 now in us (0: Redis' clock)  3 the rules (see base.lua), then
--       number of further shards, the epoch id of each, lead us, lease us,
--       then per entry: the place of its shard, from 1; key, its rule, its class, token, release (0, 1), healthy (0, 1), sleep us
--       (0: the receiver is not away), what an attempt failed with ('': none did), number of events, and per event: member as
--       leased, fate (0 done, 1 back), member as it goes back, order, after us
-- reply {1, place of each shard whose epoch is another} nothing was written; else {0, now, per shard: calls, then per entry:
--       code (0 settled, 3 the lease has passed to another: nothing changed, -1 damaged: settled, but not by the bucket), events
--       waiting, us until the lane's next look (-1: no need)}
-- Invariant: repeating a call changes nothing; only the holder of the lease changes anything; a lane with events stays in
--       due.
--
-- cat base.lua common.lua waiting.lua settle.lua > /tmp/s.lua; redis-cli --eval /tmp/s.lua 'epoch:{s03}' 'due:{s03}' 'ratelimit:{s03}:k' 'lane:{s03}:k' 'busy:{s03}:k' 'retry:{s03}:k' 'collapse:{s03}:k' , ID 0 1000000 60000000 1 0 1 '' 0 1 100000 20 -1 0 100000 5000000 1 k 1 '' TOKEN 1 1 0 '' 1 7 0 7 7 0
local all, a = rules()
local sinces, a, others = shards(a, 2)
if others then return others end
local now = clock(tonumber(ARGV[2]))
local lead, ttl = tonumber(ARGV[a]), tonumber(ARGV[a + 1])
local since, due -- of the entry
local reply = begun(now, #sinces)

-- events settles events, and answers in how many us the last of those that go back is due, and whether busy, collapse, lane and
-- retry, as far as they were needed, are what sluice writes. What can't go back stays leased, and what is done leaves busy
-- whatever else is damaged, since its body is gone.
local function events(n, lane, busy, retry, collapse, first)
  local later, sound, able = 0, true, nil
  for e = first, first + 5 * n - 1, 5 do
    local was, back, goes = ARGV[e], ARGV[e + 1] == '1', ARGV[e + 2]
    local last = newest(collapse, back and goes or was)
    if back and able == nil then able = backlog(lane, retry) ~= nil end
    sound = sound and last ~= nil
    local gone = (not back or able and last ~= nil) and redis.pcall('ZREM', busy, was) or 0
    if not typed(gone) then return later, false end
    if gone == 1 and back then
      local after = tonumber(ARGV[e + 4])
      enter(last, collapse, lane, retry, goes, ARGV[e + 3], after > 0 and now + after or 0)
      later = max(later, after)
    elseif gone == 1 then
      leave(last, collapse, was)
    end
  end
  return later, sound
end

-- unread ends the settling of a damaged key, by which no more than its events was settled.
local function unread(key, id)
  tallyUnread(id, now)
  redis.call('ZADD', due, d(now + 5000000), key)
  return -1, 5000000
end

-- settled notes what settled events tell of the receiver, and answers in how many us the lane should be looked at, in which, and
-- in retry, so many wait. given: the lease ends.
local function settled(s, L, key, class, later, given, waiting, own, lane, retry, e)
  local healthy, away, failure = ARGV[e + 5] == '1', tonumber(ARGV[e + 6]), ARGV[e + 7]
  s.stranger = s.class ~= class
  refill(s, L, now, since)
  if healthy and s.fails > 0 then
    s.fails = 0
    put(s, 'fails', '0')
  end
  if away > 0 then sleep(s, now, away) end
  if failure ~= '' then
    blame(s, now, failure, later)
  elseif healthy and s.failure and own == 0 then
    s.failure = nil
    redis.call('HDEL', s.key, 'failure')
  end
  if given then free(s) end
  local next = -1
  if waiting > 0 and own == 0 and s.extra + gained == 0 then -- whichever is the first, it costs one token
    next = look(s, L, now, lead, '')
  elseif waiting + own > 0 then
    next = look(s, L, now, lead, first(lane, retry, own == 0))
  end
  if not given then
    if s.til - now < ttl / 2 then
      s.til = now + ttl
      put(s, 'until', d(s.til))
      redis.call('ZADD', due, d(s.til), key)
    end
  elseif next >= 0 then
    redis.call('ZADD', due, d(now + next), key)
  else
    redis.call('ZREM', due, key)
    classify(s, '')
  end
  tally(s, next < 0)
  save(s, L, now)
  return next
end

local e = a + 3
for k = 2 * #sinces + 1, #KEYS, 5 do
  local place, key, L, class, token = tonumber(ARGV[e - 1]), ARGV[e], all[ARGV[e + 1]], ARGV[e + 2], tonumber(ARGV[e + 3])
  since, due = sinces[place], KEYS[2 * place]
  local release, n = ARGV[e + 4] == '1', tonumber(ARGV[e + 8])
  local lane, busy, retry, collapse = KEYS[k + 1], KEYS[k + 2], KEYS[k + 3], KEYS[k + 4]
  local s = load(L, KEYS[k])
  local ours = not s or s.token == token
  local later, sound
  if ours then later, sound = events(n, lane, busy, retry, collapse, e + 9) end
  local waiting, leased, own = sizes(lane, busy, retry)
  local code, next = 3, -1
  if ours then
    if not waiting or not own then
      sound = false
    elseif release and leased ~= 0 then
      local before = moved
      sound = give(busy, lane) and sound
      waiting = waiting + moved - before
    end
    if s and sound then
      code, next = 0, settled(s, L, key, class, later, release, waiting, own, lane, retry, e)
    else
      code, next = unread(key, KEYS[k])
    end
  end
  reply[#reply + 1] = code
  reply[#reply + 1] = waiting and own and waiting + own or 0
  reply[#reply + 1] = next
  e = e + 10 + 5 * n
end
return reply
