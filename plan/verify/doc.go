// Package verify proves on the compiled rules of a network that its chains keep
// their promise, or finds a flow for which they do not.
//
// It is no second run of the compiler. What is promised is worked out from the
// resources alone (intent.go); what happens is read off the configurations as a
// data path would (walk.go), for whole sets of flows at a time. Nothing here
// imports package plan, and nothing there this.
//
// # Method
//
// A set of flows is a product of a set of sources, of destinations, of source
// and destination ports and of protocols, less other such products: the header
// space of Kazemian, Varghese and McKeown (NSDI 2012) with lazy subtraction. The
// sets in each dimension are unions of atoms, the coarsest classes that no match
// of any rule or chain tells apart (Yang and Lam, ICNP 2013), so that a list of
// ten thousand prefixes costs what one costs. The promises cut all traffic into
// classes of flows with one promise each; each class is followed from the edge
// where it enters through tables, groups, every member, tunnels and continuing
// tables to where it leaves, and every step is held against the promise.
//
// Whether anything is left of a set after subtraction is decided by cutting it
// up, which gives a concrete flow if so. That can take exponential time in
// theory; a budget bounds it, and a chain whose budget is used up is unproven.
package verify
