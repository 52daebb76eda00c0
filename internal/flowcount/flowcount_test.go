package flowcount

import "testing"

func TestFlows(t *testing.T) {
	var a At
	if n := a.Flows(); n != 0 {
		t.Errorf("%d flows of no entry", n)
	}
	for range 10 { // both directions, to it and from it
		for _, place := range []int{To, From} {
			a.Add(place, false)
			a.Add(place, true)
		}
	}
	if n := a.Flows(); n != 10 {
		t.Errorf("%d flows, not 10", n)
	}
	for range 2 { // are not answered, and do not come out again
		a.Add(To, false)
		a.Add(Waiting, false)
	}
	if n := a.Flows(); n != 12 {
		t.Errorf("%d flows, not 12", n)
	}
	var worker At // entries that lead there stand on the gateway
	for range 5 {
		worker.Add(From, true)
	}
	worker.Add(From, false)
	if n := worker.Flows(); n != 5 {
		t.Errorf("%d flows on a worker, not 5", n)
	}
	var function At // runs at one gateway of a pair: each flow comes in at the other, which tells of it
	for range 7 {
		function.Add(Led(3), false)
		function.Add(Led(0), false)
	}
	if n := function.Flows(); n != 7 {
		t.Errorf("%d flows of a pair, not 7", n)
	}
}
