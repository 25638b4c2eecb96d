-- settle says what became of leased events, and ends the lease if asked.
--
-- KEYS  1 epoch:{tag}  2 due:{tag}; then per entry: ratelimit lane busy retry collapse, each :{tag}:<key>
-- ARGV  1 epoch id  2 now in us (0: Redis' clock)  3 the rules (see common.lua), then
--       lead us, lease us,
--       then per entry: key, its rule, its class, token, release (0, 1), healthy (0, 1), sleep us (0: the receiver is not away), what an
--       attempt failed with ('': none did), number of events, and per event: member as leased, fate (0 done, 1 back), member as it goes back, order, after us
-- reply {1} the epoch is another, nothing was written; else {0, now, calls, then per entry: code (0 settled, 3 the lease
--       has passed to another: nothing changed, -1 damaged: settled, but not by the bucket), events waiting, us until the
--       lane's next look (-1: no need)}
-- Invariant: repeating a call changes nothing; only the holder of the lease changes anything; a lane with events stays in
--       due.
--
-- cat common.lua waiting.lua settle.lua > /tmp/s.lua; redis-cli --eval /tmp/s.lua 'epoch:{s03}' 'due:{s03}' 'ratelimit:{s03}:k' 'lane:{s03}:k' 'busy:{s03}:k' 'retry:{s03}:k' 'collapse:{s03}:k' , ID 0 1000000 60000000 1 0 1 '' 0 1 100000 20 -1 100000 5000000 k 1 '' TOKEN 1 1 0 '' 1 7 0 7 7 0
local ok, since = epoch(KEYS[1], ARGV[1])
if not ok then return {1} end
local now = clock(tonumber(ARGV[2]))
local all, a = rules()
local lead, ttl = tonumber(ARGV[a]), tonumber(ARGV[a + 1])
local reply = {0, now, redis.call('HINCRBY', KEYS[1], 'n', '1')}
local e = a + 2

-- events settles events, and answers in how many us the last of those that go back is due.
local function events(n, lane, busy, retry, collapse, first)
  local later = 0
  for j = 0, n - 1 do
    local e = first + 5 * j
    local was, fate, goes, order, after = ARGV[e], ARGV[e + 1], ARGV[e + 2], ARGV[e + 3], tonumber(ARGV[e + 4])
    if redis.call('ZREM', busy, was) == 1 then
      if fate == '1' then
        enter(collapse, lane, retry, goes, order, after > 0 and now + after or 0)
        later = max(later, after)
      else
        leave(collapse, was)
      end
    end
  end
  return later
end

for i = 0, (#KEYS - 2) / 5 - 1 do
  local key, L, class, token = ARGV[e], all[ARGV[e + 1]], ARGV[e + 2], tonumber(ARGV[e + 3])
  local release, healthy = ARGV[e + 4] == '1', ARGV[e + 5] == '1'
  local away, failure, n = tonumber(ARGV[e + 6]), ARGV[e + 7], tonumber(ARGV[e + 8])
  local lane, busy, retry, collapse = KEYS[5 * i + 4], KEYS[5 * i + 5], KEYS[5 * i + 6], KEYS[5 * i + 7]
  local s = load(L, KEYS[5 * i + 3])
  local code, next = 0, 5000000
  if not s then
    code = -1
    events(n, lane, busy, retry, collapse, e + 9)
    if release then give(busy, lane) end
    tallyUnread(KEYS[5 * i + 3], now)
    redis.call('ZADD', KEYS[2], d(now + next), key)
  elseif s.token ~= token then
    code, next = 3, -1
  else
    local later = events(n, lane, busy, retry, collapse, e + 9)
    s.stranger = s.class ~= class
    refill(s, L, now, since)
    if healthy and s.fails > 0 then
      s.fails = 0
      put(s, 'fails', '0')
    end
    if away > 0 then sleep(s, now, away) end
    if failure ~= '' then
      blame(s, now, failure, later)
    elseif healthy and s.failure and redis.call('EXISTS', retry) == 0 then
      s.failure = nil
      redis.call('HDEL', s.key, 'failure')
    end
    if release then
      give(busy, lane)
      free(s)
      next = look(s, L, now, lead, lane, retry)
      if next >= 0 then
        redis.call('ZADD', KEYS[2], d(now + next), key)
      else
        redis.call('ZREM', KEYS[2], key)
        classify(s, '')
      end
    else
      next = look(s, L, now, lead, lane, retry)
      if s.til - now < ttl / 2 then
        s.til = now + ttl
        put(s, 'until', d(s.til))
        redis.call('ZADD', KEYS[2], d(s.til), key)
      end
    end
    tally(s, next < 0)
    save(s, L, now)
  end
  reply[#reply + 1] = code
  reply[#reply + 1] = redis.call('ZCARD', lane) + redis.call('ZCARD', retry)
  reply[#reply + 1] = next
  e = e + 9 + 5 * n
end
return reply
