// Package pipeline carries events from a source to a sink, never faster than each key's limit.
//
// The words, used in all of sluice:
//
//	event       what a producer published: id, key, subject, data, headers, attempt
//	key         who is limited; read from the event by a [KeySpec]
//	source      the producers' stream; sluice never changes it
//	bucket      the tokens of a key, shared by all workers
//	reserve     take tokens now, or at a slot within the horizon (1 s at most)
//	hold        wait for a slot in memory
//	lane        a key's waiting events: bodies in [Lanes], order and times in [Index]
//	park        put an event into its lane
//	claim       pick lanes that are due
//	lease       a worker's exclusive right to drain a lane for a while
//	settle      say what became of an event
//	dead letter an event that can't be delivered, kept with its reason
//	push slot   one of a worker's pushes in flight
//
// Read pipeline.go first: it is the way of an event from top to bottom. Then lanes.go, drain.go and launch.go, the way out of
// a lane; floor.go, strict order; outcome.go, the rules for what an attempt's answer means; destination.go, when all work
// pauses; ports.go, what the package needs of the world. It knows neither NATS nor Redis nor HTTP: package stream below it,
// limiter/redisstore and sink implement the ports.
//
// What makes each step safe is its order. A crash between two steps leaves:
//
//	stored in the lane, not indexed    the source delivers the event again; storing it again gives the same body
//	indexed, not acked                 the same, and indexing it again changes nothing
//	pushed, not acked (source)         delivered again, parked, and pushed once more: a duplicate with the same id
//	pushed, body not deleted (lane)    the lease runs out, the next holder pushes once more: a duplicate
//	body deleted, not settled          the next holder finds the body gone and settles the event
//	indexed, an older one not dropped  it is marked: whoever leases the lane drops it, and never pushes it
//	dead-lettered, not acked           delivered again; the same dead letter is stored once
//	lease lost while pushing           what the late holder says is refused; the new one has the events
package pipeline
