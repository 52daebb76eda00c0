package distribute

import "math/big"

// Place says what a chain's flows would cost if an element had one more instance in a
// rack: before and behind are the elements next to it, either may be empty; in and out
// weigh the flows before and behind the element, which may shrink or swell them (Stratos
// §5.2: the ratio of input and output).
func Place(before, element, behind []Instance, rack string, in, out int64, costs Costs) *big.Rat {
	share := int64(1)
	for _, i := range element {
		share = max(share, i.Share)
	}
	with := append(element[:len(element):len(element)], Instance{Rack: rack, Share: share})
	cost := Between(before, with, costs).Cost()
	cost.Mul(cost, big.NewRat(in, 1))
	next := Between(with, behind, costs).Cost()
	return cost.Add(cost, next.Mul(next, big.NewRat(out, 1)))
}
