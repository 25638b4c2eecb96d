-- Put before every script: what is stored, and what calls of all scripts have in common. Times are microseconds of Redis' own
-- clock. All numbers are integers below 2^53 and are written with %d, since Lua's own conversion keeps 14 digits only; but for the
-- sequences of streams, which are 64 bits wide and only ever digits here.
--
-- ratelimit:{tag}:<key>  hash  per limit, with its name and ":" before each field unless it is a bucket per second:
--                              tokens frac den updatedAt   level at updatedAt: tokens + frac/den; negative = slots promised
--                              slice counts den updatedAt  kind sliding: tokens taken per slice of the period, newest first
--                              exp                         when the expiry that is set ends
--                              class                       the tier of the newest event in the lane; missing or empty: none
--                              opened opening              until when so many events are on their way into the lane
--                              openingExtra                what these cost beyond one token each; missing: nothing
--                              extra                       what the events of lane and retry cost beyond one token each
--                              closedUntil fails           the receiver is away until; failures in a row
--                              failure                     what the last attempt that failed has said, in short; missing: all is well
--                              holder token until          the lease of the lane
-- lane:{tag}:<key>   zset  member seq[,attempt,cost,expires,order,first[,name]]  score: place in the source
--                          a "!" before the name: a newer event of that name waits, this one is to be dropped
--                          of an event whose order is 2^53 or more, so that its score is rounded, seq is 40 digits: order and
--                          sequence, 20 each. Members of one score are sorted by their bytes, and so by their order
-- busy:{tag}:<key>   zset  the same, leased and not settled
-- retry:{tag}:<key>  zset  the same, score: the event's own due time; 0 of those to be dropped
-- collapse:{tag}:<key>  hash  name -> the newest member of that name that isn't settled
-- due:{tag}          zset  key, as it stands in the names of its keys -> time of the next look
-- epoch:{tag}        hash  id lanes since n building format (1); adopted: lanes, if that stream took another's place;
--                          verified: the bodies up to this sequence of the lane stream have their place in the index;
--                          holder token until: the lease of who rebuilds or verifies the index; building: its token,
--                          while the index is rebuilt
--
-- Rules, the limits of keys, stand in ARGV from 3 on: clock tolerance us, expiry margin us, number of rules, then per rule:
-- mode (0 counted, 1 paused, 2 unlimited), number of limits, and per limit: field prefix, kind (0 bucket, 1 window, 2 leaky,
-- 3 sliding), num, den, burst, and the longest wait as tokens of refill (-1: any). An entry names its rule by its place,
-- from 1. Whoever calls by the lane's events also names the class by which it found the rule.

-- No expiry is later: package limiter refuses limits that remember for longer than 100 years. What stands beside them keeps the
-- times of all that is stored exact.
local MAX_TTL = 3200000000000000
local EXACT = 9007199254740991
local HORIZON = 1000000       -- nothing is promised for later
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

local format, find, match, tonumber, KEYS, ARGV = string.format, string.find, string.match, tonumber, KEYS, ARGV
local function d(x) return format('%d', x) end

-- whole answers the number that a field holds, 0 for a missing one, nil if it is none that sluice writes.
local function whole(s)
  if not s or s == '0' then return 0 end
  local x = tonumber(s)
  if x and x % 1 == 0 and x <= EXACT and x >= -EXACT then return x end
end

local function clock(override)
  if override > 0 then return override end
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000000 + tonumber(t[2])
end

-- epoch answers id-matches, since. A caller that knows another id must not touch anything.
local function epoch(key, id)
  local e = redis.call('HMGET', key, 'id', 'since')
  return e[1] and e[1] == id, tonumber(e[2] or '') or 0
end

-- shards answers of the shards of a call, whose keys stand first in KEYS, so many of each, since when their buckets have been
-- filling, where in ARGV their ids end, of which all but the first begin at a, behind their number, and what to answer if some
-- are others now: nothing must be touched then.
local function shards(a, keys)
  local n, sinces, others = 1 + tonumber(ARGV[a]), {}, {1}
  for i = 1, n do
    local ok
    ok, sinces[i] = epoch(KEYS[keys * (i - 1) + 1], i == 1 and ARGV[1] or ARGV[a + i - 1])
    if not ok then others[#others + 1] = i end
  end
  return sinces, a + n, others[2] and others
end

-- limits answers the limits of the rule that begins at a in ARGV, and where it ends.
local function limits(a)
  local L = {tol = tonumber(ARGV[3]), margin = tonumber(ARGV[4]), mode = tonumber(ARGV[a])}
  local n = tonumber(ARGV[a + 1])
  for i = 1, n do
    local b = a + 6 * i - 4
    local p, kind = ARGV[b], tonumber(ARGV[b + 1])
    L[i] = {kind = kind, num = tonumber(ARGV[b + 2]), den = tonumber(ARGV[b + 3]), burst = tonumber(ARGV[b + 4]),
      maxWait = tonumber(ARGV[b + 5]), tokens = p .. (kind == 3 and 'slice' or 'tokens'),
      frac = p .. (kind == 3 and 'counts' or 'frac'), denField = p .. 'den', at = p .. 'updatedAt'}
  end
  return L, a + 2 + 6 * n
end

-- rules answers the limits of all rules of ARGV, by what entries name them, and where in ARGV they end.
local function rules()
  local all, a = {}, 6
  for i = 1, tonumber(ARGV[5]) do all[d(i)], a = limits(a) end
  return all, a
end

