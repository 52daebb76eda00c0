package filelock

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

func TestTry(t *testing.T) {
	path := filepath.Join(t.TempDir(), "made", "x.lock")
	release, err := Try(path)
	if err != nil {
		t.Fatal(err)
	}
	var held *Held
	if _, err := Try(path); !errors.As(err, &held) || held.PID != os.Getpid() {
		t.Errorf("a second one gets %v", err)
	}
	release()
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file stays: %v", err)
	}
	if again, err := Try(path); err != nil {
		t.Error(err)
	} else {
		again()
	}
}

// TestOneAtATime: who removes the file does not let in two.
func TestOneAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.lock")
	var inside, taken atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 2000 {
				release, err := Try(path)
				var held *Held
				if errors.As(err, &held) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d hold the lock", n)
				}
				taken.Add(1)
				inside.Add(-1)
				release()
			}
		})
	}
	wg.Wait()
	if taken.Load() == 0 {
		t.Error("nobody got it")
	}
}
