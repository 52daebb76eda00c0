// Package classifier compiles a table's rules to a forest, in which
// bpf/lib/classify.h finds the first rule that matches a packet with a number of
// look-ups that does not depend on how many rules there are.
//
// # The structure
//
// Rules are spread over at most MaxTuples hash tables ("tuples", after tuple
// space search, Srinivasan, Suri and Varghese 1999). A tuple keeps some leading
// bits of the source and of the destination address; every rule in it has
// prefixes at least that long, so that it is found by one hash. Which lengths
// are kept is chosen for all rules at once: rules of many different lengths share
// a tuple, as in TupleMerge (Daly et al. 2019). Rules that share a slot, because
// their addresses do or by collision, are the leaf of a small decision tree that
// cuts ranges of any field (HyperSplit, Qi et al. 2009) eight ways at a time, one
// cache line a node. Rules that a cut would copy too often leave the tree for a
// later tuple (the separation of EffiCuts, Vamanan et al. 2010). The tuples are
// ordered by their best rule, and the search ends once no later one can be
// better.
//
// # Bounds
//
// Whatever the rules: at most MaxTuples slots, and behind each at most MaxDepth
// nodes and MaxLeaf rules are read. Memory is linear: a rule is copied at most
// CopiesPerRule times on average. Rules for which that cannot be held (crossing
// ranges in all fields at once, more families of them than tuples) are refused
// with a [TooComplex] that names them; nothing is blown up.
//
// Others were weighed. Bit vectors (Lakshman and Stiliadis 1998) need one bit
// per rule and packet, so their cost grows with the rules; recursive flow
// classification (Gupta and McKeown 1999) and cross-producting have constant
// steps but memory that products of ranges blow up; decision trees alone copy
// wild-card rules into most leaves; PartitionSort (Yingchareonthawornchai et al.
// 2016) updates fast, which is of little use where a changed table is compiled
// as a whole, and its steps grow with the logarithm.
//
// # Packets that cannot be read
//
// A packet whose ports cannot be read may match any rule for its addresses, one
// whose protocol is hidden as well any for its addresses alone. They are looked
// up in forests of their own, made of the rules without those fields, once with
// all rules and once with those of strict paths.
package classifier
