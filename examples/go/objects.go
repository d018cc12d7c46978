// Command objects feeds Services to a Switchyard that runs with --objects-socket=SOCKET:
//
//	objects SOCKET [FILE...]
//
// Each file is one object of the API as JSON. What the files leave out is gone.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
)

// fault is the content of an error or of a problem.
type fault struct {
	Line                   int
	Object, Field, Message string
}

func (f *fault) Error() string {
	return fmt.Sprintf("line %d: %s: %s: %s", f.Line, f.Object, f.Field, f.Message)
}

// send writes a whole list.
func send(conn net.Conn, files []string) error {
	w := bufio.NewWriter(conn)
	fmt.Fprintln(w, `"list"`)
	for _, file := range files {
		object, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		// Marshal writes one line, however the file is laid out.
		line, err := json.Marshal(map[string]json.RawMessage{"apply": object})
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		fmt.Fprintf(w, "%s\n", line)
	}
	fmt.Fprintln(w, `"synced"`)
	return w.Flush()
}

// receive prints the answers up to the end of the list.
func receive(conn net.Conn) error {
	answers := json.NewDecoder(conn)
	for {
		var answer struct {
			Hello          *struct{ Node string }
			Error, Problem *fault
			Synced         *struct{ Objects int }
		}
		if err := answers.Decode(&answer); err != nil {
			return err
		}
		switch {
		case answer.Hello != nil:
			fmt.Println("node", answer.Hello.Node)
		case answer.Error != nil:
			return answer.Error
		case answer.Problem != nil:
			fmt.Println("problem", answer.Problem)
		case answer.Synced != nil:
			fmt.Println("objects", answer.Synced.Objects)
			return nil
		}
	}
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: objects SOCKET [FILE...]")
		os.Exit(2)
	}
	conn, err := net.Dial("unix", os.Args[1])
	if err == nil {
		sent := make(chan error, 1)
		go func() {
			err := send(conn, os.Args[2:])
			if err != nil {
				conn.Close() // The list has no end, so that nothing goes.
			}
			sent <- err
		}()
		err = receive(conn)
		conn.Close()
		failed := <-sent
		if _, refused := err.(*fault); !refused && failed != nil {
			err = failed
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
