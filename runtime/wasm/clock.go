package wasm

import "time"

func after(d time.Duration) <-chan time.Time { return time.After(d) }

func age(t time.Time) time.Duration { return time.Since(t) }
