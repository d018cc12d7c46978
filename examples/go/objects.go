// Command objects feeds Services to a Switchyard that runs with --objects-socket=SOCKET:
//
//	objects SOCKET [FILE...]
//
// Each file is one object of the API as JSON. What the files leave out is gone.
package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
)

// list returns the lines of a whole list.
func list(files []string) ([]byte, error) {
	lines := []byte("\"list\"\n")
	for _, file := range files {
		object, err := os.ReadFile(file)
		if err == nil {
			// One line, however the file is laid out.
			object, err = json.Marshal(map[string]json.RawMessage{"apply": object})
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		lines = append(append(lines, object...), '\n')
	}
	return append(lines, "\"synced\"\n"...), nil
}

// feed sends a list, and prints the answers up to its end.
func feed(conn net.Conn, files []string) error {
	for answers := json.NewDecoder(conn); ; {
		var answer struct { // of one field
			Hello          *struct{ Node string }
			Error, Problem *struct {
				Line                   int
				Object, Field, Message string
			}
			Synced *struct{ Objects int }
		}
		if err := answers.Decode(&answer); err != nil {
			return err
		}
		if hello := answer.Hello; hello != nil {
			fmt.Println("node", hello.Node)
			lines, err := list(files)
			if err != nil {
				return err
			}
			go conn.Write(lines) // while answers are read; where it fails, reading fails, too
		} else if e := answer.Error; e != nil {
			return fmt.Errorf("line %d: %s: %s: %s", e.Line, e.Object, e.Field, e.Message)
		} else if p := answer.Problem; p != nil {
			fmt.Printf("problem %s: %s: %s\n", p.Object, p.Field, p.Message)
		} else if synced := answer.Synced; synced != nil {
			fmt.Println("objects", synced.Objects)
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
		err = feed(conn, os.Args[2:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
