/* A proxy that makes a server distant: every byte is passed on DELAY_US microseconds after it came, in each direction.
 *
 *     distance PORT SOCKET DELAY_US
 *
 * It listens on 127.0.0.1:PORT and connects to the unix socket SOCKET. Each read is kept with the moment at which it is due. The
 * delay is the same for all, so one queue is in order. A timer of the kernel wakes it, with a slack of a nanosecond.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

typedef struct End { int fd, over; struct End *other; } End;                              /* one of the two sockets of a connection */
typedef struct Piece { struct Piece *next; int64_t due; End *to; size_t size; char data[]; } Piece;

static Piece *first, *last;
static int polled, timer;
static int64_t delay_ns;

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void fail(const char *what) {
  perror(what);
  exit(1);
}

static void watch(int fd, void *what) {
  struct epoll_event event = {EPOLLIN, {.ptr = what}};
  if (epoll_ctl(polled, EPOLL_CTL_ADD, fd, &event)) fail("epoll_ctl");
}

static void accept_one(int listening, const struct sockaddr_un *server) {
  End *ends = calloc(2, sizeof *ends);
  int on = 1;
  ends[0].fd = accept(listening, NULL, NULL);
  ends[1].fd = socket(AF_UNIX, SOCK_STREAM, 0);
  if (ends[0].fd < 0 || connect(ends[1].fd, (const void *)server, sizeof *server)) {
    close(ends[0].fd);
    close(ends[1].fd);
    free(ends);
    return;
  }
  setsockopt(ends[0].fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  for (int i = 0; i < 2; i++) {
    ends[i].other = &ends[1 - i];
    watch(ends[i].fd, &ends[i]);
  }
}

/* Keep what has come for the other end. Nothing (size 0) is kept, too: it is the end of what is sent there. */
static void read_one(End *end) {
  static char data[1 << 16];
  ssize_t size = recv(end->fd, data, sizeof data, MSG_DONTWAIT);
  if (size < 0 && errno == EAGAIN) return;
  if (size < 0) size = 0;
  if (!size) epoll_ctl(polled, EPOLL_CTL_DEL, end->fd, NULL);
  Piece *piece = malloc(sizeof *piece + size);
  piece->next = NULL;
  piece->due = now_ns() + delay_ns;
  piece->to = end->other;
  piece->size = size;
  memcpy(piece->data, data, size);
  if (last) last->next = piece;
  else first = piece;
  last = piece;
}

static void pass_on(Piece *piece) {
  End *to = piece->to, *ends = to < to->other ? to : to->other;
  for (size_t sent = 0; sent < piece->size;) {
    ssize_t written = send(to->fd, piece->data + sent, piece->size - sent, 0);
    if (written < 0) break;
    sent += written;
  }
  if (piece->size) return;
  shutdown(to->fd, SHUT_WR);
  to->over = 1;
  if (ends[0].over && ends[1].over) {
    close(ends[0].fd);
    close(ends[1].fd);
    free(ends);
  }
}

int main(int count, char **words) {
  if (count != 4) return fprintf(stderr, "distance PORT SOCKET DELAY_US\n"), 2;
  struct sockaddr_in address = {AF_INET, htons(atoi(words[1])), {htonl(INADDR_LOOPBACK)}, {0}};
  struct sockaddr_un server = {AF_UNIX, ""};
  snprintf(server.sun_path, sizeof server.sun_path, "%s", words[2]);
  delay_ns = atol(words[3]) * INT64_C(1000);
  signal(SIGPIPE, SIG_IGN);
  prctl(PR_SET_TIMERSLACK, 1);
  int listening = socket(AF_INET, SOCK_STREAM, 0), on = 1;
  setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(listening, (void *)&address, sizeof address) || listen(listening, 128)) fail("listen");
  polled = epoll_create1(0);
  timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
  watch(listening, &listening);
  watch(timer, &timer);
  for (;;) {
    struct epoll_event events[64];
    int ready = epoll_wait(polled, events, 64, -1);
    for (int i = 0; i < ready; i++) {
      if (events[i].data.ptr == &listening) accept_one(listening, &server);
      else if (events[i].data.ptr != &timer) read_one(events[i].data.ptr);
    }
    while (first && first->due <= now_ns()) {
      Piece *piece = first;
      first = piece->next;
      if (!first) last = NULL;
      pass_on(piece);
      free(piece);
    }
    struct itimerspec next = {{0, 0}, {0, 0}}; /* setting it, even to nothing, also ends the expiry that was reported */
    if (first) next.it_value = (struct timespec){first->due / 1000000000, first->due % 1000000000};
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &next, NULL);
  }
}
