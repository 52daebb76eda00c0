package etcd

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/onpath/onpath"
)

// TestAlarmOfOlderVersion: a store that etcd had closed for changes takes them again.
func TestAlarmOfOlderVersion(t *testing.T) {
	o := Options{Dir: t.TempDir()}
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	srv := s.embedded.etcd.Server
	raise := &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: uint64(srv.MemberID()), Alarm: pb.AlarmType_NOSPACE}
	if _, err := srv.Alarm(t.Context(), raise); err != nil {
		t.Fatal(err)
	}
	b := onpath.Batch{Records: []onpath.Record{{Path: "a", Value: []byte("b")}}}
	if _, err := s.Write(t.Context(), b); onpath.CodeOf(err) != onpath.CodeUnavailable {
		t.Errorf("a write with the alarm raised: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Write(t.Context(), b); err != nil {
		t.Errorf("a write after a restart: %v", err)
	}
}
