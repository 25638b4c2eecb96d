// Package integration holds the drills: whole-binary tests against real servers, with faults.
//
// What is real: a NATS server with JetStream on disk (in the test process, so that it can be stopped and started), a
// redis-server process, an HTTP receiver with its own clock, and `sluice worker` processes that are killed, stopped and
// counted on. What is not: the network, which is loopback.
//
// The drills need redis-server in the PATH and, for the race detector, a C compiler; `make test` installs both where it
// can. Without redis-server a drill skips itself and names the command that helps. SLUICE_REQUIRE_SERVERS=1 or CI=true
// turns such a skip into a failure, and SLUICE_SOAK=1 (`make soak`) runs the long ones too.
//
// The rules of the house are checked here as well: who may import whom, what the repository holds, how long a file is.
package integration
