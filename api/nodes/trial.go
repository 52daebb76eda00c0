package nodes

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/api/router"
	"github.com/onpath/onpath/measure/trial"
)

// trialTime is how long a trial may take beyond what it measures.
const trialTime = time.Minute

func (s *Nodes) registerTrials() {
	op := router.Operation(http.MethodPost, "/v1/trials", "trial",
		"Have two nodes try the network between them: what passes, how much, how soon")
	router.Register(s.router, op, func(ctx context.Context, in *struct{ Body trial.Request }) (*struct{ Body trial.Result }, error) {
		t, err := s.trial(ctx, in.Body)
		if err != nil {
			return nil, err
		}
		return &struct{ Body trial.Result }{*t}, nil
	})
}

// trial has one node receive and the other send, and joins what both say.
func (s *Nodes) trial(ctx context.Context, r trial.Request) (*trial.Result, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	var to *onpath.Node
	for _, name := range []string{r.From, r.To} {
		o, err := s.d.Store.Get(ctx, onpath.Key{Kind: onpath.KindNode, Name: name})
		if err != nil {
			return nil, err
		}
		to = o.(*onpath.Node)
	}
	word := make([]byte, 16)
	_, _ = rand.Read(word) // never fails
	p := trial.Part{Kind: r.Kind, Protocol: r.Protocol, For: r.For, Count: r.Count, Word: hex.EncodeToString(word),
		Address: r.Address, Tunnel: to.Spec.Underlay.Port}
	if !p.Address.IsValid() {
		p.Address = to.Spec.Underlay.Address
	}
	if p.Tunnel == 0 {
		p.Tunnel = onpath.DefaultTunnelPort
	}
	s.d.Log.Info("the network between two nodes is tried", "kind", r.Kind, "from", r.From, "to", r.To, "by", rights.WhoIs(ctx).URI())
	ctx, cancel := context.WithTimeout(ctx, time.Duration(r.For)+time.Duration(r.Count)*time.Second+trialTime)
	defer cancel()
	return s.between(ctx, r, p)
}

// between begins with the receiver.
func (s *Nodes) between(ctx context.Context, r trial.Request, p trial.Part) (*trial.Result, error) {
	p.Receiver = true
	receiver, err := s.d.Hub.Call(ctx, r.To, onpath.OpTrial, p)
	if err != nil {
		return nil, err
	}
	defer receiver.Close()
	heard := json.NewDecoder(io.LimitReader(receiver, onpath.MaxNodeReply))
	if err := heard.Decode(&p.Listens); err != nil {
		return nil, unreadable(err, r.To)
	}
	p.Receiver = false
	sender, err := s.d.Hub.Call(ctx, r.From, onpath.OpTrial, p)
	if err != nil {
		return nil, err
	}
	defer sender.Close()
	var sent, got trial.Result
	if err := json.NewDecoder(io.LimitReader(sender, onpath.MaxNodeReply)).Decode(&sent); err != nil {
		return nil, unreadable(err, r.From)
	}
	if _, err := receiver.Write([]byte{1}); err != nil {
		return nil, err
	}
	if err := heard.Decode(&got); err != nil {
		return nil, unreadable(err, r.To)
	}
	sent.Hear(&got)
	return &sent, nil
}

// unreadable is what a node refuses, or an answer that is none.
func unreadable(err error, node string) error {
	if onpath.CodeOf(err) == onpath.CodeUnsupported {
		e := onpath.Errorf(onpath.CodeUnsupported, "the agent of node %s knows no trials: its version is older", node)
		e.Remedy = "upgrade it"
		return e
	}
	var known *onpath.Error
	if errors.As(err, &known) {
		return err
	}
	return onpath.Errorf(onpath.CodeInternal, "node %s answered what cannot be read: %w", node, err)
}
