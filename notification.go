package onpath

import "time"

// Notification is what a function tells its owner (GNFC §III-D).
type Notification struct {
	// ID is the node's, and the same whenever the notification is sent again.
	ID       string            `json:"id"`
	Time     time.Time         `json:"time"` // by the node's clock, when it was accepted
	Tenant   string            `json:"tenant"`
	Instance string            `json:"instance"`
	Function string            `json:"function,omitempty"` // tenant/name
	Node     string            `json:"node"`
	Level    NotificationLevel `json:"level"`
	Title    string            `json:"title"`
	Text     string            `json:"text,omitempty"`
	Fields   map[string]string `json:"fields,omitempty"`
}

// Where a function tells its notifications, inside its own network namespace: POST /notify
// with level, title, text and fields as JSON. NotifySocket is an abstract unix socket, which
// belongs to the namespace.
const (
	NotifyAddress = "127.0.0.1:4798"
	NotifySocket  = "@onpath/notify"
	// NotifyVariable names the address in a container's environment.
	NotifyVariable = "ONPATH_NOTIFY"
)

// NumberedNotification is one as its node numbers it, for the server.
type NumberedNotification struct {
	Number uint64       `json:"number"`
	Said   Notification `json:"said"`
}

// NotificationLevel says how much a notification matters.
type NotificationLevel string

// The levels, the least first.
const (
	LevelInfo     NotificationLevel = "info"
	LevelWarning  NotificationLevel = "warning"
	LevelCritical NotificationLevel = "critical"
)

// Bounds of what a function may say at once, in bytes.
const (
	MaxNotificationTitle = 200
	MaxNotificationText  = 4096
	MaxNotificationField = 512 // key and value together
	MaxNotificationCount = 16  // of fields
)

// Validate checks what a function said, and fills in the level where none is given.
func (n *Notification) Validate() error {
	v := &validation{}
	enum(v, "level", &n.Level, LevelInfo, LevelInfo, LevelWarning, LevelCritical)
	if n.Title == "" {
		v.add("title", "say in a few words what happened", "is missing")
	}
	for _, part := range []struct {
		field, text string
		most        int
	}{{"title", n.Title, MaxNotificationTitle}, {"text", n.Text, MaxNotificationText}} {
		if len(part.text) > part.most {
			v.add(part.field, "", "has %d bytes; at most %d are possible", len(part.text), part.most)
		}
	}
	if len(n.Fields) > MaxNotificationCount {
		v.add("fields", "", "there are %d; at most %d are possible", len(n.Fields), MaxNotificationCount)
	}
	for k, value := range n.Fields {
		if len(k)+len(value) > MaxNotificationField {
			v.add("fields", "", "%s has %d bytes; at most %d are possible", quote(k), len(k)+len(value), MaxNotificationField)
		}
	}
	return v.err()
}

// NotificationFilter selects notifications; zero fields select all.
type NotificationFilter struct {
	Tenant   string
	Instance string
	Limit    int // the latest so many; 0: all
}

// Selects reports whether a notification is meant.
func (f NotificationFilter) Selects(n *Notification) bool {
	return (f.Tenant == "" || n.Tenant == f.Tenant) && (f.Instance == "" || n.Instance == f.Instance)
}
