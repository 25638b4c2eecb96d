// Package limiter says who may go, and when: the grammar of limits, their exact arithmetic, and the words for decisions.
// It needs nothing but the standard library; package redisstore below it keeps the buckets in Redis.
//
// A limit is a token bucket: tokens accrue evenly up to a burst, an event takes its cost, and whoever finds too few may be
// promised a slot, which is the moment when the missing ones will have accrued. All arithmetic is in integers: a rate is
// num/den tokens per microsecond, a level is whole tokens and a fraction of 1/den.
//
// Read limit.go for what a person writes, class.go for the arithmetic, decision.go for the answers, and key.go for how the
// key of an event becomes a name in Redis and NATS.
package limiter
