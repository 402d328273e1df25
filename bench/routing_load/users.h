/* Who asks, in which order, and who should answer: read from two files before the load begins. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct user {
	char *request;
	int length;
	char key[33];
	int owner[2];
};

static struct user *users;
static uint32_t *order;
static size_t order_length;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void read_users(const char *path, const char *header_name)
{
	FILE *file = fopen(path, "r");
	char id[512], key[33];
	int before, after;
	size_t count = 0, room = 0;
	if (!file)
		die(path);
	while (fscanf(file, "%511s %32s %d %d", id, key, &before, &after) == 4) {
		if (count == room && !(users = realloc(users, (room = room ? 2 * room : 4096) * sizeof *users)))
			die("memory");
		struct user *u = &users[count++];
		u->length = asprintf(&u->request, "GET / HTTP/1.1\r\nhost: fleet\r\n%s: %s\r\n\r\n", header_name, id);
		memcpy(u->key, key, sizeof key);
		u->owner[0] = before;
		u->owner[1] = after;
	}
	fclose(file);
}

static void read_order(const char *path)
{
	struct stat info;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &info))
		die(path);
	order_length = info.st_size / sizeof *order;
	order = mmap(NULL, info.st_size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
	if (!order_length || order == MAP_FAILED)
		die("no order of users");
	close(fd);
}
