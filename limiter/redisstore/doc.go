// Package redisstore keeps what all workers share in Redis: the buckets of the keys, and the index of their lanes (order,
// times and leases; the bodies of waiting events lie in JetStream).
//
// It implements [sluice/pipeline.Limiter] and [sluice/pipeline.Index]. Every change is one script run by Redis on its own
// clock. Read base.lua for the stored state, then the scripts in the order of an event's way: take, reserve, park, claim,
// lease, settle. The state is spread over [sluice/limiter.Shards] hash tags; calls of one kind for a bundle of these, in a Cluster
// for one, are collected while one is in flight, so that callers ask one event at a time and Redis sees batches.
//
// Which limits rule a key is said by a [sluice/limiter.Resolver]: rule.go hands them to the scripts, a call at a time. When they
// have changed, [Store.Rearm] lets the lanes that wait by the old ones be looked at.
//
// [Limiter] is for programs that want only shared limits: it needs neither lanes nor a stream.
//
// The state belongs to one epoch per shard. A worker names the epoch's id in every call; when Redis has lost it, nothing
// is written, the calls fail with [ErrEpoch], and [Store.Run] rebuilds the index from the stored bodies. It also verifies
// every stored body's place in the index once (verify.lua), for a worker may die between storing and parking. One worker does
// either, under a lease: work.go.
//
// What operators ask of a single key and do with it is in explain.go and purge.go.
//
// A worker's pipeline uses a [Fallback], which goes on by a [Policy] while Redis is away: read shares.go for what may be
// pushed then, outage.go for when, and charge.lua for how it is paid afterwards.
package redisstore
