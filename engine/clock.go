package engine

import "time"

func now() time.Time { return time.Now() }

func after(d time.Duration) <-chan time.Time { return time.After(d) }

func afterFunc(d time.Duration, f func()) *time.Timer { return time.AfterFunc(d, f) }

func newTimer(d time.Duration) *time.Timer { return time.NewTimer(d) }
