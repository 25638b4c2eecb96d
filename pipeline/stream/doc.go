// Package stream is the NATS JetStream side of sluice: the source the events come from, the lanes that keep the bodies of
// waiting events, the dead letters, and what workers tell each other.
//
// Read names.go and headers.go for what is stored where and under which names, setup.go for what must exist before a
// worker starts, source.go, pull.go and delivery.go for how events come in and are settled (tend.go keeps them coming, floor.go remembers
// how far they are settled, foreign.go tells what is no event), and store.go for what lanes.go and deadletters.go have in common
// (scan.go reads all of one, keep.go makes their streams again). connect.go, login.go and faults.go turn the troubles of NATS into words
// that say what to do.
//
// Events are never published to a stream that sluice doesn't own, and the source stream is never changed.
package stream
