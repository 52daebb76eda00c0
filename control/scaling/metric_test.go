package scaling

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestLongMetricAnswer: of an answer without end no more is read than a number needs.
func TestLongMetricAnswer(t *testing.T) {
	var sent atomic.Int64
	endless := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		piece := []byte(strings.Repeat(" ", 64<<10))
		for sent.Load() < 64<<20 {
			n, err := w.Write(piece)
			if sent.Add(int64(n)); err != nil {
				return
			}
		}
	}))
	defer endless.Close()
	_, _, err := pull(t.Context(), onpath.ScalingMetric{URL: endless.URL, Query: "up"}, time.Minute)
	if err == nil || !strings.Contains(err.Error(), "more than 1048576 bytes") {
		t.Errorf("an answer without end: %v", err)
	}
	if n := sent.Load(); n >= 64<<20 {
		t.Errorf("%d bytes of it were taken", n)
	}
}
