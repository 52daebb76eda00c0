package pool

import (
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestAppliedAgain: a file with a reservation that is over is applied again with all others in
// it. Another request of that name for a time that is past is refused on.
func TestAppliedAgain(t *testing.T) {
	f := setUp(t)
	over, next := request("over", 0, time.Hour, cores(1)), request("next", 3*time.Hour, 4*time.Hour, cores(1))
	f.must(over)
	f.pass(2 * time.Hour)
	q, err := f.Apply(t.Context(), []*onpath.Reservation{f.checked(over), f.checked(next)}, nil, false)
	if err != nil || q[0].State != onpath.ReservationEnded || q[1].State != onpath.ReservationConfirmed ||
		!strings.Contains(strings.Join(q[0].Notes, ""), "it is ended and left as it is") {
		t.Errorf("%+v, %v", q, err)
	}
	f.wants("over", onpath.ReservationEnded, 1, "its time is over")
	_, err = f.apply(request("over", 0, time.Hour, cores(2)))
	f.refused(err, onpath.CodeInvalid, "is past")
	f.must(request("over", 3*time.Hour, 4*time.Hour, cores(1)))
}
