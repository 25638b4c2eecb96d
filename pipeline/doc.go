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
// Read pipeline.go first: it is the way of an event from top to bottom; ask.go is how it gets its tokens. Then lanes.go, drain.go and launch.go, the way out of
// a lane; floor.go, strict order; outcome.go, the rules for what an attempt's answer means; destination.go, when all work
// pauses; ports.go, what the package needs of the world. It knows neither NATS nor Redis nor HTTP: package stream below it,
// limiter/redisstore and sink implement the ports.
//
// What makes each step safe is its order. The calls of the index are carried out as a whole or not at all, and each may be
// repeated, so a reply that is lost is a call that is made again ([Index]). A crash between two steps leaves:
//
//	the source
//	    reserved, not pushed        its tokens are wasted; the source delivers the event again, and it is parked
//	        TestWorkerMayDieAfterAnyStep
//	    pushed, not acked           delivered again, parked, and pushed once more: a duplicate with the same id
//	        TestWorkerMayDieAfterAnyStep
//	    dead-lettered, not acked    delivered again; the same dead letter is stored once
//	        TestWorkerMayDieAfterAnyStep
//	park
//	    told to, not stored         the key is open for 2 s; then newer events needn't wait for it, which comes again
//	        TestBookedSlotsAreHeldAndTheRestParked, TestWorkerMayDieAfterAnyStep
//	    stored, not indexed         the source delivers it again, and storing it again within a minute gives the same body;
//	                                after that, or if it was acked while Redis was away, the body is found and indexed. One that would
//	                                wait too long by then ends by the overflow policy, and is delivered beside that when its body is found
//	        TestWorkerMayDieAfterAnyStep, TestStoredEventsWithoutAPlaceGetOneAndTheOthersKeepTheirs
//	    indexed, not acked          delivered again; indexing it again changes nothing, also while it is leased
//	        TestLaneLeavesInSourceOrderHoweverItWasParked, TestLeasedEventIsIndexedNoSecondTime
//	    indexed again after a try   its place is another by then, so it has two: whichever goes first deletes the body, and
//	                                the other finds it gone
//	        TestEventWithTwoPlacesIsPushedOnce
//	    lanes full: buried, no ack  delivered again; if there is room by then it is delivered beside its dead letter
//	        TestDeadLetterOfAnEventThatFoundNoRoomIsKeptThoughTheEventComesAgain
//	collapse
//	    the older one not dropped   it is marked: whoever leases the lane drops it, and never pushes it
//	        TestCollapseIsSafeAtEachStep, TestCollapsedEventOfADeadWorkerIsNeverPushed
//	    body deleted, not forgotten whoever leases the lane finds it gone and settles it
//	        TestCollapseIsSafeAtEachStep, TestForgetTakesOnlyWhatIsToBeDropped
//	    the newer one delivered     the mark stays with the older one, which needs no newer one to be dropped
//	        TestCollapsedEventOfADeadWorkerIsNeverPushed
//	    the older one leased        it is pushed, or dropped when it comes back
//	        TestLeasedEventIsNotCollapsedUntilItComesBack
//	lanes
//	    claimed, not leased         the lane is due again a second later
//	        TestParkedLaneFallsDueBeforeItsSlot
//	    leased, reply lost          who asks again takes the lane over from itself; the tokens are wasted
//	        TestHolderThatLostItsTokenTakesTheLaneOverFromItself, TestEventsOfALeaseWhoseReplyIsLostComeBack
//	    leased, not pushed          the lease runs out after 5 s, and the next holder takes back what it held
//	        TestLaneIsLeasedByOneWorkerAtATime, TestWorkerMayDieAfterAnyStep
//	    pushed, body not deleted    the next holder pushes once more: a duplicate
//	        TestWorkerMayDieAfterAnyStep
//	    buried, body not deleted    the next holder pushes once more unless it costs too much; the same dead letter is stored
//	                                once
//	        TestWorkerMayDieAfterAnyStep
//	    body deleted, not settled   the next holder finds the body gone and settles the event
//	        TestEventWhoseBodyIsGoneIsSettledWithoutAPush, TestWorkerMayDieAfterAnyStep
//	    settled, reply lost         settling again changes nothing, or the lease is no longer there to be refused
//	        TestRetriedEventComesBackAtItsOwnTimeWhileTheLaneGoesOn, TestSettledLaneClosesAndLeavesNothingBehind
//	    lease lost while pushing    what the late holder says is refused; the new one has the events
//	        TestLaneIsLeasedByOneWorkerAtATime, TestDrainEndsQuietlyWhenItsLeaseHasPassed
//	    rearmed in part             the other lanes are looked at within a minute all the same; rearming again moves the rest
//	        TestManyWaitingKeysAreRearmedSoonAndOnce, TestPausedKeyLeasesNothingAndIsNotForgotten
//	the index
//	    verified in part            another goes on when the lease ends, 10 s after the last heartbeat, from where it was noted
//	        TestVerificationIsLeftToTheWorkerThatIsAboutIt, TestEventIsVerifiedOnceByOneOfTheWorkers
//	    verified while settled      the body is looked for once more before a place is given; one that is given all the same
//	                                is settled by the next lease
//	        TestEventSettledWhileItIsVerifiedGetsNoPlace, TestEventWhoseBodyIsGoneIsSettledWithoutAPush
//	    rebuilt in part             nothing goes by it: no call has its epoch; another builds anew when the lease ends, 10 s after
//	                                the last heartbeat
//	        TestKilledRebuilderIsReplacedWhenItsLeaseEnds, TestSecondLossDuringARebuildStartsItOver
//	    silent over either          once another has the lease, what the late one writes is refused
//	        TestLateWritesOfAStalledWorkerAreRefused
//	    an old one dropped in part  the next build drops the rest
//	        TestDroppingTheOldIndexGoesOnAfterACrash
//	    rebuilt while pushing       the lease is of the lost index: the late holder is refused, and the next finds the body
//	                                gone, or pushes once more
//	        TestEveryCallIsRefusedUnderAnotherEpochAndWritesNothing, TestLateHolderOfALostIndexIsRefused
package pipeline
