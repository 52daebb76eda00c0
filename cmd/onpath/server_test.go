package main

import (
	"strings"
	"testing"
)

// TestListenConflict: a port that is taken is named with its key and the remedy.
func TestListenConflict(t *testing.T) {
	l, err := listen("metrics", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for address, want := range map[string]string{
		l.Addr().String(): "metrics: " + l.Addr().String() + ": address already in use; another program listens there",
		"192.0.2.77:1":    "metrics: 192.0.2.77:1: cannot assign requested address; write an address that this machine has",
	} {
		if _, err := listen("metrics", address); err == nil || !strings.HasPrefix(err.Error(), want) || exitCode(err) != exitUnavailable {
			t.Errorf("%s: %v", address, err)
		}
	}
}
