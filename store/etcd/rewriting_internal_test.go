package etcd

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestRewritingWaits: the file is rewritten once the requests that run have ended; requests that come
// meanwhile run after it, however long it takes. A request that does not end is not waited for forever.
func TestRewritingWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r rewriting
		began := time.Now()
		after := func() time.Duration { return time.Since(began) }
		want := func(what string, at time.Duration) {
			t.Helper()
			if after() != at {
				t.Errorf("%s after %s, not %s", what, after(), at)
			}
		}
		ctx := t.Context()
		r.begin(ctx)
		go func() {
			time.Sleep(time.Second)
			r.end()
		}()
		failed := errors.New("no")
		go func() {
			err := r.do(func() error {
				want("it is rewritten", time.Second)
				time.Sleep(time.Minute)
				return failed
			}, 10*time.Second)
			if !errors.Is(err, failed) {
				t.Errorf("rewriting gives %v", err)
			}
		}()
		synctest.Wait()
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if r.begin(short) {
			t.Error("a request runs while the file is rewritten")
		}
		if !r.begin(ctx) {
			t.Error("a request does not run after it")
		}
		want("it runs", time.Minute+time.Second)
		_ = r.do(func() error { want("the request goes on", time.Minute+11*time.Second); return nil }, 10*time.Second)
		r.end()
		if !r.begin(ctx) || r.running != 1 {
			t.Errorf("%d requests run", r.running)
		}
	})
}
