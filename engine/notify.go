package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/tetratelabs/wazero/api"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/engine/control"
)

// Bounds of notify/1: of a module a second, and of an engine at a time.
const (
	tellRate    = 10
	maxTelling  = 16
	tellingTime = 10 * time.Second
)

// newTeller speaks to the door where the agent takes notifications of this instance.
func newTeller(s *supply) *http.Client {
	return &http.Client{Timeout: tellingTime, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return s.ask(ctx, control.Want{Notify: true})
		},
	}}
}

// notify has a notification sent beside the packets; notify-lost counts what was not taken.
func (h *host) notify(mem api.Memory, s []uint64) {
	title, ok := window(mem, s[1], s[2], onpath.MaxNotificationTitle)
	text, ok2 := window(mem, s[3], s[4], onpath.MaxNotificationText)
	levels := []onpath.NotificationLevel{onpath.LevelInfo, onpath.LevelWarning, onpath.LevelCritical}
	if !ok || !ok2 || len(title) == 0 || u(s[0]) >= uint32(len(levels)) {
		s[0] = result(tooLarge)
		return
	}
	body, err := json.Marshal(map[string]any{"level": levels[u(s[0])],
		"title": strings.ToValidUTF8(string(title), "?"), "text": strings.ToValidUTF8(string(text), "?")})
	if err != nil || !h.tells.take(1, now()) {
		s[0] = result(refused)
		return
	}
	e := h.e
	select {
	case e.telling <- struct{}{}:
	default:
		s[0] = result(refused)
		return
	}
	go func() {
		defer func() { <-e.telling }()
		if err := e.tellOwner(body); err != nil {
			_ = e.do(e.ended, func() { h.missed(&h.m.numbers.NotifyLost, "a notification is lost", err.Error()) })
		}
	}()
	s[0] = 0
}

func (e *Engine) tellOwner(body []byte) error {
	resp, err := e.teller.Post("http://notify/notify", "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusAccepted {
		said, _ := io.ReadAll(io.LimitReader(resp.Body, maxWord))
		return fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(said)))
	}
	return nil
}
