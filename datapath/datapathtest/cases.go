package datapathtest

// Cases lists the exam, in the order in which Run takes it.
func Cases() []Case {
	return []Case{
		{"untouched", "what no rule selects is the kernel's: forwarded, not counted, no entry", untouched},
		{"routed", "one routed element is crossed there and back, by every protocol", routed},
		{"three-on-one-node", "routed, bridged and rewriting elements in a row", threeOnOneNode},
		{"three-on-three-nodes", "the same, each on a node of its own", threeOnThreeNodes},
		{"three-elsewhere", "the same, none on the gateway", threeElsewhere},
		{"answers", "an element answers on a flow it was given, to both ends", answers},
		{"originate", "a proxy opens connections from its own and its client's address", origins},
		{"spoofed", "what an instance may not emit is dropped, counted, and steals no answer", spoofs},
		{"shared", "one deployment stands in two chains", shared},
		{"tiers", "the operator's chain wraps the tenant's", tiers},
		{"element-select", "flows that an element does not select skip it", selects},
		{"overlap", "of two chains that select a packet the first takes it", overlap},
		{"forward-only", "of a chain with direction forward, replies are the kernel's", forwardOnly},
		{"mirror", "a mirror gets copies of both directions and gives nothing back", mirrors},
		{"only-mirrors", "a chain of mirrors only lets the traffic pass", onlyMirrors},
		{"exit-last", "packets leave at the last element's node", exitLast},
		{"shares", "10,000 flows meet three instances by their weights, within a tenth", shares},
		{"sticky", "adding, draining and weighing move no flow, removing only its own", sticks},
		{"symmetric", "whoever starts a flow, it meets the same instance", symmetry},
		{"lost-repick", "flows of a dead instance go on at another, both ways", repick},
		{"lost-reset", "connections of a dead instance are reset, new ones work", resets},
		{"none-drop", "without an instance nothing passes", noneDrop},
		{"none-bypass", "without an instance traffic goes past the element", noneBypass},
		{"adoption", "connections older than the chain pass by while it is young", adoption},
		{"cut", "connections older than the chain are reset where it says so", cuts},
	}
}
