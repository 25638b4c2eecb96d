// Package limiter says who may go, and when: the grammar of limits, their exact arithmetic, and the words for decisions.
// It needs nothing but the standard library.
//
// [Local] limits the keys of one process. Package redisstore has the same for all processes on one Redis (and the store of
// sluice's workers), package httplimit a middleware over either.
//
// A key has one limit or several, and an event of the key goes when all of them can pay its cost. Each is of one [Kind]:
//
//	bucket   tokens accrue evenly up to a burst: at most burst + rate x T in any time T
//	window   N tokens come at the end of each period, up to a burst: the periods follow one another without drift
//	leaky    one token each period/N: a bucket that holds 1
//	sliding  at most N tokens in any period, wherever it begins
//
// Whoever finds too few may be promised a slot within the horizon: the earliest moment at which every limit can pay. The
// tokens are taken from every limit at that moment, or from none.
//
// All arithmetic is in integers, microseconds and tokens, so that it is exact, and so that the scripts in Redis, which know
// only doubles, can do the same. [Model] is that arithmetic for one key with the time as an argument.
//
// [Resolver] says which limits rule a key: [Fixed] ones, or those of a [Book], whose rules for keys, tiers of keys, patterns and
// all change while it is asked.
//
// Read limits.go and limit.go for what a person writes, class.go, state.go and sliding.go for the arithmetic, model.go,
// local.go and tiers.go for its use, place.go, pattern.go and book.go for rules that change, decision.go for the answers,
// and key.go for how the key of an event becomes a name in Redis and NATS.
package limiter
